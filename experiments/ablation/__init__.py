"""What each piece of the default for tables adds, alone and together."""
