-- Find the place of a waiting job with bounded reads: an entry of the stream, or an index in one of the two lists.
-- The record names the entry of every job that this library made ready. For jobs pushed by a peer, the likely
-- positions are read.

local LIST_PAGE, HEAD_PAGE, TIME_PAGE = 1000, 200, 300

-- Check the entry in the record, then the entries fetched next, then those added after the job's time.
local function in_stream(q, id, h)
  local entry = G.find_entry(q, id, h.eid, h.timestamp) or G.entry_between(q, id, '-', '+', HEAD_PAGE)
  if entry or not string.find(h.timestamp or '', '^%d+$') then return entry end
  return G.entry_between(q, id, h.timestamp, '+', TIME_PAGE)
end

-- Search a list from both ends. `rank` is the direction, for LREM.
local function in_list(key, id)
  for _, rank in ipairs({ -1, 1 }) do
    if type(G.pcall('LPOS', key, id, 'RANK', rank, 'MAXLEN', LIST_PAGE)) == 'number' then
      return { list = key, rank = rank }
    end
  end
  return nil
end

local function in_lists(q, id) return in_list(q.lifo, id) or in_list(q.priority, id) end

-- h: eid, timestamp, lifo, priority, fairKey. Return {entry}, {list, rank}, {set}, or {fair} with its key; {held} if a
-- peer's worker has read the entry and not yet activated the job; nil if the bounded reads do not find it.
G.waiting_place = function(q, id, h)
  if type(G.pcall('ZSCORE', q.suspects, id)) == 'string' then return { set = q.suspects } end
  if h.fairKey and G.fair.is_waiting(q, id, h.fairKey) then return { fair = h.fairKey } end
  local in_a_list = h.lifo == '1' or G.count_of(h.priority) > 0
  local place = in_a_list and in_lists(q, id)
  if place then return place end
  local entry = in_stream(q, id, h)
  if not entry then return not in_a_list and in_lists(q, id) or nil end
  return { entry = entry, held = G.is_pending(q, entry) }
end

G.leave_waiting = function(q, id, place)
  if place.entry then
    G.ack_entries(q, { place.entry })
  elseif place.fair then
    G.fair.leave(q, id, place.fair)
  elseif place.set then
    redis.call('ZREM', place.set, id)
  else
    redis.call('LREM', place.list, place.rank, id)
  end
end
