-- check_scope: return the kind of the queue.   KEYS 1 meta   -> packed {broadcast 0|1, peers 0|1}
--   broadcast: its stream is read by subscriptions, whose entries stay; peers: workers of another library are
--   registered
-- check_counters: compare the counters of the queue with the counted jobs. Changes nothing.
-- KEYS 1 meta   ARGV 1 packed counters   -> packed rows {counter, is, should be}
-- counters: {top, others, peers}: the highest id of digits found; active jobs without a stream entry that no set of
-- ours contains; 1 = workers of peers are registered (their list jobs are in no set: a count that is too high is
-- theirs)
-- Bound: one read per id of `others`, and one per fair key with ready jobs; if there are more than FAIR_KEYS_MAX, the
-- number of waiting fair jobs is not compared.

local C = G.checks
local FAIR_KEYS_MAX = 5000

G.export('check_scope', { 'no-writes' }, function(q)
  return { broadcast = G.subscriptions.any(q) and 1 or 0, peers = G.has_peers(q) and 1 or 0 }
end)

-- Count active jobs without a pending entry, and popped ones.
local function without_entry(q, others)
  local n = G.count_list_ids(q) + redis.call('ZCARD', q.list_popped)
  for _, id in ipairs(others) do
    local h = C.read(q, id)
    if h and h.state == 'active' and not G.is_list_job(q, id) and not (h.eid and G.is_pending(q, h.eid)) then
      n = n + 1
    end
  end
  return n
end

-- Return the number of ready jobs of all fair keys; nil if there are too many keys.
local function count_fair(q)
  local keys, n = redis.call('ZRANGE', q.fair_keys, 0, FAIR_KEYS_MAX), 0
  if #keys > FAIR_KEYS_MAX then return nil end
  for i = 1, #keys do n = n + redis.call('ZCARD', G.fair.queue_of(q, keys[i])) end
  return n
end

local function add(rows, name, actual, expected)
  rows[#rows + 1] = G.new.wrong_counter({ name = name, actual = actual, expected = expected })
end

local function check_fair(q, rows)
  if not G.fair.used(q) then return end
  local count, actual = G.num(G.pcall('HGET', q.fair_state, 'waiting')), count_fair(q)
  if not actual or count == actual then return end
  add(rows, 'fair-waiting', count, actual)
end

C.find_wrong_counters = function(q, r)
  local rows = {}
  local count, actual = G.count_of(redis.call('GET', q.list_active)), without_entry(q, r.others)
  if count < actual or (count > actual and r.peers == 0) then
    add(rows, 'list-active', count, actual)
  end
  local last = G.num(redis.call('GET', q.id))
  if G.has_lost_channels(q) then add(rows, 'wake-channels', 0, redis.call('ZCARD', q.wake_channels)) end
  check_fair(q, rows)
  if r.top > last then add(rows, 'id', last, r.top) end
  return rows
end

G.export('check_counters', { 'no-writes' }, C.find_wrong_counters)
