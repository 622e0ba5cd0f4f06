"""CIFAR-10 by features of public patches and a private linear model, beside DOPE-SGD's Table 9."""
