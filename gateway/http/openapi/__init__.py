"""What `/openapi.json` says: models of answers, tables of responses, and what FastAPI cannot know by itself.

The models describe; routes and formats write plain dicts, and a test holds the two together.
"""
