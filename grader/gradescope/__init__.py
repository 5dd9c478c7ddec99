"""The autograder that runs at Gradescope: a zip that holds the grader, and the program that grades there."""
