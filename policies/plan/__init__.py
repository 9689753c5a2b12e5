"""What a plan says to the device, how tokens are chosen, and what a plan costs."""
