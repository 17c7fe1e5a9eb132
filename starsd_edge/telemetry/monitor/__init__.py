"""The live view of a hub: snapshots fold into a board, a board and a size give a frame."""
