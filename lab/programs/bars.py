def checks(quick, bars):
    return []
def verdicts(rows):
    return {}
