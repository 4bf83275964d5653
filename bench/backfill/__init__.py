"""Rolling one chunk into a summary beside compressing the whole history again, from 5,000 to 100,000 interactions."""
