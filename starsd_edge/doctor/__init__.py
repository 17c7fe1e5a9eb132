"""Whether what a machine or a link needs is there: facts are gathered at the edge, checks are functions of them."""
