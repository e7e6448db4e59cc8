"""Reports on a lake and its keys: for people, for build servers, and for single questions."""
