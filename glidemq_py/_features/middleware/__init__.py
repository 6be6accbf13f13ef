"""Code around every add and every run of a job, and the headers that carry context from one to the other."""
