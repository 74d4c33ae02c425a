"""From runs to a page: tables, pictures, and what stands beside them in the literature."""
