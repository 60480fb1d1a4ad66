"""Results on disk: files that grow by lines and survive a kill, with the settings that made them."""
