"""Storage in Redis: generations, traces and sessions."""
