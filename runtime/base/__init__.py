"""What all of the runtime stands on: errors, clock, codec, envelope, mailbox. Knows no node and no actor."""
