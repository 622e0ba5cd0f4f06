"""The papers' datasets: a function each, with origin, license and citation.

Each looks in the folder of the environment variable SIDELIGHT_DATA (or else in `sidelight` in your cache
folder), and downloads what is not there from its public origin, once: with pooch, whole or not at all, and
checked where a checksum is published (`sources` says which). Offline, the error says which file to put where;
the published archive will do. `download=False` never asks the network.

Arrays come as a `Dataset` (X, y, and X_test, y_test where the publisher has a test part), tables with text as
a pandas frame. Values are the originals: nothing is scaled, shuffled or resampled. Labels of two classes are
−1/+1.
"""

from __future__ import annotations

from typing import Any

from experiments.datasets.files import Dataset, available, folder, load, load_table

__all__ = [
    "Dataset",
    "a9a",
    "adult",
    "available",
    "bank",
    "bike_sharing",
    "california_housing",
    "cifar10",
    "flights",
    "folder",
    "grid_stability",
    "ipums_br",
    "ipums_us",
    "kddcup99",
    "load",
    "load_table",
    "magic",
    "metro_traffic",
    "miniboone",
    "mnist",
    "poker",
    "purchase100",
    "satellite",
    "skin",
    "sst2",
    "wikitext2",
]


def adult(*, download: bool = True) -> Any:
    """Adult (Census Income), raw: 48,842 people, 14 attributes, `income`, and `split` (train or test).

    A missing value is "?". File: adult_raw.parquet. Origin: UCI 2. License: CC BY 4.0.
    Cite: B. Becker and R. Kohavi, "Adult", UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20.
    """
    return load_table("adult-raw", download=download)


def a9a(*, download: bool = True) -> Dataset:
    """Adult as 123 indicators: 32,561 rows and 16,281 test rows, y = +1 for more than 50,000 dollars.

    The rows are those of `adult`, in order. File: a9a.npz. Origin: LIBSVM's binary collection.
    License: CC BY 4.0 (UCI Adult). Cite: as for `adult`, and J. Platt, "Fast training of support vector
    machines using sequential minimal optimization", 1998.
    """
    return load("adult-a", download=download)


def bank(*, download: bool = True) -> Any:
    """Bank Marketing (bank-full): 45,211 clients, 16 attributes, `y` (yes or no).

    `duration` is known only after the call; leave it out of a realistic model. File: bank.parquet.
    Origin: UCI 222. License: CC BY 4.0. Cite: S. Moro, P. Cortez and P. Rita, "A data-driven approach to
    predict the success of bank telemarketing", Decision Support Systems 62, 2014, doi:10.24432/C5K306.
    """
    return load_table("bank", download=download)


def ipums_br(*, download: bool = True) -> Dataset:
    """IPUMS-BR, a Brazilian census extract as DP-AGD uses it: 38,000 rows, 52 attributes, two classes.

    File: ipums_br.npz. It is never downloaded: the terms of IPUMS International allow research, and no
    redistribution. Cite: Minnesota Population Center, IPUMS International; J. Lee and D. Kifer, "Concentrated
    differentially private gradient descent with adaptive per-iteration privacy budget", KDD 2018.
    """
    return load("ipums-br", download=download)


def ipums_us(*, download: bool = True) -> Dataset:
    """IPUMS-US, the like for the United States, of about 40,000 rows: two classes.

    File: ipums_us.npz (X, y). Never downloaded; terms and citation as for `ipums_br`.
    """
    return load("ipums-us", download=download)


def magic(*, download: bool = True) -> Dataset:
    """MAGIC Gamma Telescope: 19,020 events, 10 attributes, y = +1 gamma, −1 hadron.

    File: magic04.npz. Origin: UCI 159. License: CC BY 4.0.
    Cite: R. Bock, "MAGIC Gamma Telescope", UCI Machine Learning Repository, 2007, doi:10.24432/C52C8B.
    """
    return load("magic04", download=download)


def miniboone(*, download: bool = True) -> Dataset:
    """MiniBooNE particle identification: 130,064 events, 50 attributes, y = +1 signal, −1 background.

    −999 stands for a missing value, as published. File: mini_boo_ne.npz. Origin: UCI 199. License: CC BY 4.0.
    Cite: B. Roe, "MiniBooNE particle identification", UCI Machine Learning Repository, 2010,
    doi:10.24432/C5QC87.
    """
    return load("mini-boo-ne", download=download)


def skin(*, download: bool = True) -> Dataset:
    """Skin Segmentation: 245,057 pixels in B, G, R, y = +1 skin, −1 other; 51,444 distinct rows.

    File: skin_segmentation.npz. Origin: UCI 229. License: CC BY 4.0.
    Cite: R. Bhatt and A. Dhall, "Skin Segmentation", UCI Machine Learning Repository, 2012,
    doi:10.24432/C5T30C.
    """
    return load("skin", download=download)


def california_housing(*, download: bool = True) -> Dataset:
    """California housing: 20,640 blocks, 8 attributes, y = median house value in dollars.

    y is capped at 500,001, as published. File: cadata.npz. Origin: StatLib, from the copy that scikit-learn
    pins. License: none stated. Cite: R. K. Pace and R. Barry, "Sparse spatial autoregressions", Statistics
    & Probability Letters 33, 1997.
    """
    return load("cadata", download=download)


def grid_stability(*, download: bool = True) -> Dataset:
    """Electrical grid stability, simulated: 10,000 rows, 12 attributes, y = `stab` (stable if negative).

    File: grid_stability.npz. Origin: UCI 471. License: CC BY 4.0.
    Cite: V. Arzamasov, "Electrical Grid Stability Simulated Data", UCI Machine Learning Repository, 2018,
    doi:10.24432/C5PG66.
    """
    return load("stability", download=download)


def kddcup99(*, download: bool = True) -> Any:
    """KDD Cup 1999, the 10 % file: 494,021 connections, 41 attributes, `label` (23 values).

    145,586 rows are distinct. File: kddcup99_10pct.parquet. Origin: UCI 130, from the copy that scikit-learn
    pins. License: CC BY 4.0. Cite: S. Stolfo et al., "KDD Cup 1999 Data", UCI Machine Learning Repository,
    1999, doi:10.24432/C51C7N.
    """
    return load_table("kddcup99", download=download)


def flights(*, download: bool = True) -> Any:
    """Flights from New York in 2013: 336,776 flights, 18 columns, some missing; `arr_delay` in minutes.

    Without `year`, which is constant. File: flights.parquet. Origin: nycflights13, from the US Bureau of
    Transportation Statistics. License: CC0. Cite: H. Wickham, "nycflights13", an R package.
    """
    return load_table("flights", download=download)


def bike_sharing(*, download: bool = True) -> Any:
    """Bike sharing by the hour: 17,379 hours, 13 attributes, `cnt` (bikes rented).

    File: bike.parquet. Origin: UCI 275. License: CC BY 4.0.
    Cite: H. Fanaee-T, "Bike Sharing", UCI Machine Learning Repository, 2013, doi:10.24432/C5W894.
    """
    return load_table("bike", download=download)


def metro_traffic(*, download: bool = True) -> Any:
    """Metro interstate traffic: 48,204 hours, 7 attributes, `traffic_volume`.

    File: traffic.parquet. Origin: UCI 492. License: CC BY 4.0. Cite: J. Hogue, "Metro Interstate Traffic
    Volume", UCI Machine Learning Repository, 2019, doi:10.24432/C5X60B.
    """
    return load_table("traffic", download=download)


def satellite(*, download: bool = True) -> Any:
    """Statlog (Landsat satellite): 6,435 pixels with their neighbors, 36 attributes, `Class` (6 values).

    File: satellite.parquet. Origin: UCI 146. License: CC BY 4.0. Cite: A. Srinivasan, "Statlog (Landsat
    Satellite)", UCI Machine Learning Repository, 1993, doi:10.24432/C55887.
    """
    return load_table("satellite", download=download)


def poker(*, download: bool = True) -> Any:
    """Poker hands: 99,998 hands of five cards, 10 attributes, `CLASS` (8 values).

    File: poker.parquet. Origin: UCI 158. License: CC BY 4.0. Cite: R. Cattral and F. Oppacher, "Poker Hand",
    UCI Machine Learning Repository, 2002, doi:10.24432/C5KW38.
    """
    return load_table("poker", download=download)


def mnist(*, download: bool = True) -> Dataset:
    """MNIST: 60,000 and 10,000 digits, uint8 (n, 28, 28), y = 0 … 9.

    File: mnist.npz. Origin: LeCun, Cortes and Burges, from PyTorch's mirror. License: CC BY-SA 3.0, as
    commonly stated.
    Cite: Y. LeCun, L. Bottou, Y. Bengio and P. Haffner, "Gradient-based learning applied to document
    recognition", Proceedings of the IEEE 86, 1998.
    """
    return load("mnist", download=download)


def cifar10(*, download: bool = True) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 images, uint8 (n, 32, 32, 3), y = 0 … 9, in the original order.

    File: cifar10.npz, or cifar10_train.parquet and cifar10_test.parquet (sheets of 50 × 50 images in
    lossless WebP; these need pandas and pillow). Origin: the binary version at cs.toronto.edu/~kriz.
    License: none stated. Cite: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    return load("cifar10", download=download)


def purchase100(*, download: bool = True) -> Dataset:
    """Purchase-100: 197,324 shoppers, 600 indicators of bought products, y = 0 … 99 (clusters of shoppers).

    File: purchase100.npz (X, y). Origin: github.com/privacytrustlab/datasets, from Kaggle's "Acquire valued
    shoppers challenge", whose terms apply. License: none stated.
    Cite: R. Shokri, M. Stronati, C. Song and V. Shmatikov, "Membership inference attacks against machine
    learning models", IEEE S&P 2017.
    """
    return load("purchase100", download=download)


def sst2(*, download: bool = True) -> Any:
    """SST-2: `sentence`, `label` (1 positive), `split` (train 67,349, dev 872, test 1,821).

    GLUE keeps the labels of its test part; those here are the Stanford Sentiment Treebank's.
    File: sst2.parquet. Origin: GLUE, and nlp.stanford.edu/sentiment. License: none stated.
    Cite: R. Socher et al., "Recursive deep models for semantic compositionality over a sentiment treebank",
    EMNLP 2013; A. Wang et al., "GLUE", ICLR 2019.
    """
    return load_table("sst2", download=download)


def wikitext2(*, download: bool = True) -> Any:
    """WikiText-2 (v1, words with <unk>): `split` (train 600, valid 60, test 60 articles) and `text`.

    `"".join(t.text[t.split == "train"])` is the original file. File: wikitext2.parquet.
    Origin: wikitext.smerity.com. License: CC BY-SA 3.0 and GFDL.
    Cite: S. Merity, C. Xiong, J. Bradbury and R. Socher, "Pointer sentinel mixture models", ICLR 2017.
    """
    return load_table("wikitext2", download=download)
