"""What happens between a request that was understood and an answer in no API's words yet."""
