"""The report: collect the results of all chapters, and write them as a page, as JSON and as figures."""
