"""A folder of models that share their tensors: what is stored, by whom it is needed, and whether it is still what it was."""
