"""The deep tables and figures of the DOPE-SGD and Coupling papers in small, every setting by one rule."""
