"""Tables, figures and one HTML page from run folders."""
