"""Jobs with a fair key: the keys take turns, each with limits of its own."""
