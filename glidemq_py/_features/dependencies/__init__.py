"""Dependencies: jobs that wait for jobs that exist already, in any queue or in the same bulk."""
