"""Small programs around the log, each as a user would write it; the tests run them."""
