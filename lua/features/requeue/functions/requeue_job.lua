-- requeue_job: requeue a failed job with all its attempts (features/requeue/requeue.lua).
-- KEYS 1 meta   ARGV 1 id 2 (optional) '1': a completed job too
-- -> 'ok' | 'gone' | the state that does not allow it (only `failed` does, and `completed` if given)
--    | 'owned <state> <id>': the other job has its deduplication id
--    | 'keyed <packed G.rows.keyed_job>': in a partitioned queue, the client must decide: see requeue_keyed
-- An expired job fails again. Bound: constant.

G.export('requeue_job', {}, G.for_operators(function(q, r) return G.requeue_one(q, r.id, r.completed == '1') end))
