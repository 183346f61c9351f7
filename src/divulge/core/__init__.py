"""What every part of divulge shares and that knows nothing of models or attacks."""
