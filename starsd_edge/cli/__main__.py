"""`python -m starsd_edge.cli`: the command line without its installed script."""

from starsd_edge.cli.main import main

if __name__ == "__main__":
    main()
