"""What a manager is asked for seldom, as a module of its own: plain Python in both builds, imported on demand."""
