"""The pure core: values and the functions that decide, without I/O and without a clock."""
