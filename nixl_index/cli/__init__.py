"""The command line, `nixl-index`: an application on top of the library, which does not know of it."""
