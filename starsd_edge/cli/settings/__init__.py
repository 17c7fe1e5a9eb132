"""Options from elsewhere than the command line: variables and files."""
