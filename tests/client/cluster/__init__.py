"""One client of several daemons: pure rules, small servers, and three real daemons."""
