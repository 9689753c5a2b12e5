"""Zoo: a folder of models that share their tensors. Adding, listing, serving, verifying and removing them."""
