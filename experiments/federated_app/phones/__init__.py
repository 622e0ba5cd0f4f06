"""A Flower app: a linear classifier of digits, trained on phones that keep their images."""
