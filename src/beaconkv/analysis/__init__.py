"""Looking at what heads attend to and what policies evict: recorded runs, and a page to explore them."""
