"""Anthropic's Messages API, translated onto the requests of chats."""
