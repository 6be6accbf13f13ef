"""SQLAlchemy: the job of a new user is added after the commit, and forgotten after a rollback."""

import asyncio

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from glidemq_py import Job, Worker
from glidemq_py.integrations.sqlalchemy import add_after_commit
from glidemq_py.sync import Queue

engine = create_engine("sqlite://")
queue = Queue("emails")


class Base(DeclarativeBase):
    """The tables."""


class User(Base):
    """A user of the shop."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


def sign_up(name: str) -> None:
    """Store a user, and add the job that welcomes them."""
    with Session(engine) as session, session.begin():
        user = User(name=name)
        session.add(user)
        session.flush()  # assigns the id
        add_after_commit(session, queue, "welcome", {"user": user.id}, attempts=5)
        print(f"{name}: {queue.count()} jobs before the commit")
        if name == "mallory":
            raise PermissionError("not welcome")


async def welcome(job: Job) -> None:
    print("welcome, user", job.data["user"])


async def run_jobs() -> None:
    async with Worker("emails", welcome) as worker:
        await worker.drain()


def main() -> None:
    Base.metadata.create_all(engine)
    for name in ("ada", "mallory", "bob"):
        try:
            sign_up(name)
        except PermissionError as error:
            print(f"{name}: rolled back, {error}")
    asyncio.run(run_jobs())
    queue.close()
    engine.dispose()


if __name__ == "__main__":
    main()
