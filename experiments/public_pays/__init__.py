"""Does public data pay? The default beside everything that costs nothing, and beside our other methods."""
