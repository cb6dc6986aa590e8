"""Plans of fleets: `request.py` is a user's request, `plan.py` the plan, `program.py` registers resources.

`saved_plan.py` is the file of a plan, `guard.py` holds an `up` to one.
"""
