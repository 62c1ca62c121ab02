-- Delete up to %(most)s flows that ended 30 days ago, with their edges and results. Run by maintenance processes.
SELECT jobherd.delete_flows(%(most)s::integer)
