-- Add entries to the outbox: changes to be delivered to another queue (docs/reference/functions.md, "The outbox"). One
-- call cannot write to two queues of a cluster, so the entry is written in the same step as its cause. A worker then
-- delivers it by a separate call, under an id that makes a repetition a duplicate, and deletes it. An entry is `kind`
-- and the fields of that kind. Only calls of a library whose workers can deliver entries may add them.

G.outbox_put = function(q, kind, ...)
  redis.call('XADD', q.outbox, '*', 'kind', kind, ...)
  -- An exchange reports it in its reply. Every other call wakes up one idle worker, whose exchange then reports the
  -- entries.
  if not q.defer and not G.outbox_pending(q) then G.wake(q, 1) end
  q.outbox_pending = true
end

-- Return whether this call has added an entry: the worker then delivers immediately.
G.outbox_pending = function(q) return rawget(q, 'outbox_pending') == true end
