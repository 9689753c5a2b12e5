"""The foundation of the runtime: errors, clock, codec, message formats, mailbox. Knows no node and no actor."""
