"""Plans as data: what a plan tells the device, sampling options, and the cost of plans."""
