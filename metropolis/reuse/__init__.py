"""Which cached keys, values and layer inputs a prefill starts from."""
