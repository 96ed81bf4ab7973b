"""Memory, time, disk and cost of a run before it begins, here and on other machines; prices."""
