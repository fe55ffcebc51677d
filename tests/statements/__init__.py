"""The statements of the specification, one file a concept; each test names those that it proves."""
