"""One client of many daemons: pure rules, small servers, and three real daemons."""
