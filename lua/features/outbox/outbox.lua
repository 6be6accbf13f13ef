-- The outbox: what a queue owes to another queue (docs/reference/functions.md, "The outbox"). One call cannot write to
-- two queues of a cluster, so what is owed is written down here in the very step that brings it about. A worker then
-- delivers it by calls of their own, under an id that makes a repetition a duplicate, and crosses it off.
-- An entry is `kind` and the fields of that kind; who may enter one is whoever has workers that can deliver it.

G.outbox_put = function(q, kind, ...)
  redis.call('XADD', q.outbox, '*', 'kind', kind, ...)
  -- An exchange says so in its reply. Every other call wakes one idle worker, whose exchange then reports the entries.
  if not q.defer and not G.outbox_pending(q) then G.wake(q, 1) end
  rawset(q, 'outbox_pending', true)
end

-- Whether this call has put something there: a worker is told to deliver at once.
G.outbox_pending = function(q) return rawget(q, 'outbox_pending') == true end
