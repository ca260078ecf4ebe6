"""`python -m metropolis` is the command `metropolis`."""

from metropolis.cli import main

if __name__ == "__main__":  # not in processes that multiprocessing spawns
    main()
