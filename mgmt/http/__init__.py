"""The HTTP side of management: listeners, logins, and the form of lists and errors.

Theory. `listeners` listen on HTTP ports and load `server` at the first connection. `server` finds
out who the caller is (`caller`), leads the request to its endpoint, and gives every answer its
form. The endpoints are in `mgmt/api/` and `mgmt/metrics/`.

| module | for |
|---|---|
| `server` | from a request to its answer; begin here |
| `endpoint`, `request` | an endpoint, and a request as endpoints see it |
| `caller`, `sites` | the user and the user's rights; web sites that may send changes |
| `listing`, `lazy_list` | lists: filters, sorting, pages; lists made while they are read |
| `slices` | long work in slices, one in each turn of the loop |
| `errors` | errors of requests, and their answers |
| `pages`, `probes` | the web pages; probes for containers and load balancers |
"""
