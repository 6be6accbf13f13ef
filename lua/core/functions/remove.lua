-- remove: delete a job in any state, with all its keys and its place in stream, set or list.
-- KEYS 1 meta   ARGV 1 id 2 (optional) states, separated by spaces; '' = all   -> 1 removed, 0 no such job, or the state
-- of the job if it is none of these
-- An active job is deleted too: the next call of its worker returns the status gone.
-- Bound: O(log n) and a bounded search (core/find_waiting.lua). If the search does not find a waiting job's place
-- (deep in a list, or pushed by a peer), a worker removes the place when it meets it.

G.export('remove', { 'allow-oom' }, G.for_operators(function(q, r)
  local state = redis.call('HGET', q.J .. r.id, 'state')
  if not state then return 0 end
  if not G.is_among(r.states, state) then return state end
  G.remove_job(q, r.id, 'removed')
  return 1
end))
